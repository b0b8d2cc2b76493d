// The Python module `mytensor`: converts arguments and calls the checked functions; nothing is computed here.
#include <pybind11/numpy.h>

#include "allocator.h"
#include "arguments.h"
#include "cpu/settings.h"
#include "cpu/variants.h"
#include "layers.h"

#ifdef _OPENMP
#include <omp.h>
#endif

namespace py = pybind11;
using namespace py::literals;
using namespace mytensor;

namespace {

using OptionalTensor = std::optional<Tensor>;
using Int = Whole<Index>;
using Tensors = List<Tensor>;
using OptionalAxes = std::optional<std::variant<Int, Sizes>>;

// An argument that is True or False, and not what Python takes for true.
py::arg flag(const char* name) { return py::arg(name).noconvert(); }

std::vector<Index> sizes_of(const py::array& array) { return {array.shape(), array.shape() + array.ndim()}; }

// What NumPy makes of `object`, if its dtype is of one of these kinds.
py::array array_of(const py::object& object, const char* kinds, const char* what) {
  const bool whole = PyLong_Check(object.ptr());  // of any size, where NumPy's have 64 bits
  const py::array array =
      py::module_::import("numpy").attr("asarray")(whole ? py::float_(object.cast<Real>()) : object);
  if (std::string(kinds).find(array.dtype().kind()) == std::string::npos) {
    throw py::type_error(what + (" of dtype " + py::str(array.dtype()).cast<std::string>()));
  }
  return array;
}

// Copies an array of numbers, which may be repeated without end by strides of 0: its shape is looked at first.
Tensor from_numpy(const py::object& object, Device device) {
  const py::array array = array_of(object, "biuf", "an array of numbers is needed, not");
  Tensor result(Shape(sizes_of(array)), device);
  const py::array dense = py::module_::import("numpy").attr("ascontiguousarray")(array, "dtype"_a = "float32");
  std::memcpy(result.data(), dense.data(), std::size_t(result.count()) * sizeof(float));
  return result;
}

// A new array: it stays what it is when the tensor changes or goes.
py::array_t<float> to_numpy(const Tensor& tensor) {
  const Tensor rows = tensor.in_layout(Layout::RowMajor);
  py::array_t<float> result(tensor.shape().sizes());
  std::memcpy(result.mutable_data(), rows.data(), std::size_t(rows.count()) * sizeof(float));
  return result;
}

std::vector<Index> indices_of(const Sizes& sizes) { return {sizes.values.begin(), sizes.values.end()}; }

std::optional<std::vector<Index>> axes_of(const OptionalAxes& axes) {
  if (!axes) return std::nullopt;
  if (const Int* axis = std::get_if<Int>(&*axes)) return std::vector<Index>{*axis};
  return indices_of(std::get<Sizes>(*axes));
}

// The Tensor that `object` is, if it is one; `py::isinstance` is true of those as well that were never initialised.
OptionalTensor tensor_in(const py::object& object) {
  py::detail::make_caster<Tensor> tensor;
  if (!tensor.load(object, false)) return std::nullopt;
  return py::detail::cast_op<Tensor&>(tensor);
}

// An operand that is a number becomes a tensor on the other operand's device.
Tensor operand(const py::object& object, const py::object& other) {
  if (const OptionalTensor tensor = tensor_in(object)) return *tensor;
  const OptionalTensor beside = tensor_in(other);
  if (!beside) throw py::type_error("at least one operand must be a Tensor");
  py::detail::make_caster<Real> number;
  if (!number.load(object, false)) {
    const std::string shape = py::isinstance<py::array>(object) ? " of shape " + text_of(sizes_of(object)) : "";
    throw py::type_error("an operand must be a Tensor or a number, not " +
                         py::str(py::type::of(object)).cast<std::string>() + shape);
  }
  return full(Shape{}, py::detail::cast_op<Real>(number), beside->device());
}

Labels labels_of(const char* function, const py::object& object, const Tensor& logits) {
  if (const OptionalTensor tensor = tensor_in(object)) {
    if (tensor->shape().rank() == 2) return {{}, tensor->in_layout(Layout::RowMajor)};
    return labels_of(function, to_numpy(*tensor), logits);
  }
  const py::array array = array_of(object, "biuf", "labels must be numbers, not");
  if (array.ndim() == 2) return {{}, from_numpy(array, logits.device())};
  if (array.dtype().kind() == 'b') throw py::type_error("labels must be numbers, not of dtype bool");
  check_label_shape(function, sizes_of(array), logits);
  const auto values = py::array_t<double, py::array::c_style | py::array::forcecast>(array);  // exact up to 2^53
  return checked_labels(function, {values.data(), values.data() + values.size()}, logits);
}

template <Unary kOperation>
Tensor unary_function(const Tensor& x) {
  return unary(kOperation, x);
}

template <Binary kOperation>
Tensor binary_function(const py::object& a, const py::object& b) {
  return binary(kOperation, operand(a, b), operand(b, a));
}

void bind_tensor(py::module_& module) {
  py::enum_<Device>(module, "TensorDevice").value("CPU", Device::CPU).value("GPU", Device::GPU);
  py::class_<Tensor>(module, "Tensor", "float32 numbers with zero to four axes, on a device.")
      .def(py::init([](const Sizes& shape, Device device) {
             return Tensor(Shape(indices_of(shape)), device, Layout::RowMajor, true);
           }),
           "shape"_a, "device"_a = Device::CPU, "Zeros.")
      .def_static("from_numpy", &from_numpy, "array"_a, py::kw_only(), "device"_a = Device::CPU,
                  "A copy of an array of numbers, of any dtype and strides.")
      .def("numpy", &to_numpy, "A new float32 array.")
      .def("__array__",
           [](const Tensor& tensor, const py::object& dtype, const py::object&) {
             const py::object array = to_numpy(tensor);
             return dtype.is_none() ? array : array.attr("astype")(dtype);
           },
           "dtype"_a = py::none(), "copy"_a = py::none())
      .def("shape", [](const Tensor& tensor) { return py::tuple(py::cast(tensor.shape().sizes())); })
      .def("device", &Tensor::device)
      .def("cpu", [](const Tensor& tensor) { return tensor; })
      .def("gpu",
           [](const Tensor& tensor) {
             operators_of(Device::GPU);
             return tensor;
           })
      .def("copy_", &assign, "other"_a, "Overwrite with the values of a tensor of the same shape.")
      .def("fill_", [](Tensor& tensor, Real value) { fill(tensor, float(value)); }, "value"_a)
      .def("__repr__", [](const Tensor& tensor) {
        const char* device = tensor.device() == Device::CPU ? "CPU" : "GPU";
        return "mytensor.Tensor(" + tensor.shape().text() + ", " + device + ")";
      });
  module.def("full", [](const Sizes& shape, Real value, Device device) {
    return full(Shape(indices_of(shape)), float(value), device);
  }, "shape"_a, "value"_a, "device"_a = Device::CPU);
}

void bind_functions(py::module_& module) {
  module.def("add", &binary_function<Binary::Add>, "a"_a, "b"_a);
  module.def("sub", &binary_function<Binary::Sub>, "a"_a, "b"_a);
  module.def("mul", &binary_function<Binary::Mul>, "a"_a, "b"_a);
  module.def("div", &binary_function<Binary::Div>, "a"_a, "b"_a);
  module.def("pow", &binary_function<Binary::Pow>, "a"_a, "b"_a);
  module.def("maximum", &binary_function<Binary::Maximum>, "a"_a, "b"_a);
  module.def("minimum", &binary_function<Binary::Minimum>, "a"_a, "b"_a);
  module.def("equal", &binary_function<Binary::Equal>, "a"_a, "b"_a);
  module.def("greater", &binary_function<Binary::Greater>, "a"_a, "b"_a);
  module.def("greater_equal", &binary_function<Binary::GreaterEqual>, "a"_a, "b"_a);
  module.def("neg", &unary_function<Unary::Neg>, "x"_a);
  module.def("exp", &unary_function<Unary::Exp>, "x"_a);
  module.def("log", &unary_function<Unary::Log>, "x"_a);
  module.def("sqrt", &unary_function<Unary::Sqrt>, "x"_a);
  module.def("abs", &unary_function<Unary::Abs>, "x"_a);
  module.def("relu", &unary_function<Unary::Relu>, "x"_a);
  module.def("sigmoid", &unary_function<Unary::Sigmoid>, "x"_a);
  module.def("tanh", &unary_function<Unary::Tanh>, "x"_a);
  module.def("sum", [](const Tensor& x, const OptionalAxes& axes, bool keepdims) {
    return reduce("sum", Reduction::Sum, x, axes_of(axes), keepdims);
  }, "x"_a, "axes"_a = py::none(), flag("keepdims") = false);
  module.def("mean", [](const Tensor& x, const OptionalAxes& axes, bool keepdims) {
    return mean(x, axes_of(axes), keepdims);
  }, "x"_a, "axes"_a = py::none(), flag("keepdims") = false);
  module.def("max", [](const Tensor& x, const OptionalAxes& axes, bool keepdims) {
    return reduce("max", Reduction::Max, x, axes_of(axes), keepdims);
  }, "x"_a, "axes"_a = py::none(), flag("keepdims") = false);
  module.def("reshape", [](const Tensor& x, const Sizes& shape) { return reshape(x, indices_of(shape)); }, "x"_a,
             "shape"_a);
  module.def("transpose", [](const Tensor& x, const std::optional<Sizes>& axes) {
    return transpose(x, axes ? std::optional(indices_of(*axes)) : std::nullopt);
  }, "x"_a, "axes"_a = py::none());
  module.def("broadcast_to", [](const Tensor& x, const Sizes& shape) {
    return broadcast_to(x, Shape(indices_of(shape)));
  }, "x"_a, "shape"_a);
  module.def("matmul", &matmul, "a"_a, "b"_a, flag("transpose_a") = false, flag("transpose_b") = false);
}

void bind_layers(py::module_& nn) {
  nn.def("linear_forward", &linear_forward, "x"_a, "weight"_a, "bias"_a = py::none());
  nn.def("linear_backward", [](const Tensor& x, const Tensor& weight, const OptionalTensor& bias,
                               const Tensor& out_grad, bool need_x) {
    return linear_backward(x, weight, bias.has_value(), out_grad, need_x);
  }, "x"_a, "weight"_a, "bias"_a, "out_grad"_a, flag("need_x") = true);
  nn.def("conv_forward", [](const Tensor& x, const Tensor& weight, const OptionalTensor& bias, Int stride_h,
                            Int stride_w, Int pad_h, Int pad_w) {
    return conv_forward(x, weight, bias, {stride_h, stride_w, pad_h, pad_w});
  }, "x"_a, "weight"_a, "bias"_a, "stride_h"_a, "stride_w"_a, "pad_h"_a, "pad_w"_a);
  nn.def("conv_backward", [](const Tensor& x, const Tensor& weight, const OptionalTensor& bias, const Tensor& out_grad,
                             Int stride_h, Int stride_w, Int pad_h, Int pad_w, bool need_x) {
    return conv_backward(x, weight, bias.has_value(), out_grad, {stride_h, stride_w, pad_h, pad_w}, need_x);
  }, "x"_a, "weight"_a, "bias"_a, "out_grad"_a, "stride_h"_a, "stride_w"_a, "pad_h"_a, "pad_w"_a,
         flag("need_x") = true);

  const auto bind_pooling = [&](const char* forward, const char* backward, Pooling kind) {
    nn.def(forward, [kind](const Tensor& x, Int kernel_h, Int kernel_w, Int stride_h, Int stride_w, Int pad_h,
                           Int pad_w) {
      return pool_forward(kind, x, kernel_h, kernel_w, {stride_h, stride_w, pad_h, pad_w});
    }, "x"_a, "kernel_h"_a, "kernel_w"_a, "stride_h"_a, "stride_w"_a, "pad_h"_a, "pad_w"_a);
    nn.def(backward, [kind](const Tensor& x, const Tensor& out_grad, Int kernel_h, Int kernel_w, Int stride_h,
                            Int stride_w, Int pad_h, Int pad_w) {
      return pool_backward(kind, x, out_grad, kernel_h, kernel_w, {stride_h, stride_w, pad_h, pad_w});
    }, "x"_a, "out_grad"_a, "kernel_h"_a, "kernel_w"_a, "stride_h"_a, "stride_w"_a, "pad_h"_a, "pad_w"_a);
  };
  bind_pooling("maxpool_forward", "maxpool_backward", Pooling::Max);
  bind_pooling("avgpool_forward", "avgpool_backward", Pooling::Average);

  nn.def("batchnorm_forward", [](const Tensor& x, const Tensor& weight, const Tensor& bias, Tensor& running_mean,
                                 Tensor& running_var, bool training, Real momentum, Real eps) {
    return batch_norm_forward(x, weight, bias, running_mean, running_var, training, float(momentum), float(eps));
  }, "x"_a, "weight"_a, "bias"_a, "running_mean"_a, "running_var"_a,
         flag("training"), "momentum"_a, "eps"_a);
  nn.def("batchnorm_backward", &batch_norm_backward, "x"_a, "weight"_a, "mean"_a, "rstd"_a, "out_grad"_a,
         flag("training"));
  nn.def("relu_forward", &unary_function<Unary::Relu>, "x"_a);
  nn.def("sigmoid_forward", &unary_function<Unary::Sigmoid>, "x"_a);
  nn.def("tanh_forward", &unary_function<Unary::Tanh>, "x"_a);
  const auto bind_derivative = [&](const char* name, Derivative operation, const char* argument) {
    nn.def(name, [operation](const Tensor& x, const Tensor& out_grad) { return derivative(operation, x, out_grad); },
           py::arg(argument), "out_grad"_a);
  };
  bind_derivative("relu_backward", Derivative::Relu, "x");
  bind_derivative("sigmoid_backward", Derivative::Sigmoid, "y");
  bind_derivative("tanh_backward", Derivative::Tanh, "y");

  for (const bool logarithm : {false, true}) {
    nn.def(logarithm ? "log_softmax_forward" : "softmax_forward",
           [logarithm](const Tensor& x, Int axis) { return softmax_forward(x, axis, logarithm); }, "x"_a,
           "axis"_a = -1);
    nn.def(logarithm ? "log_softmax_backward" : "softmax_backward",
           [logarithm](const Tensor& y, const Tensor& out_grad, Int axis) {
             return softmax_backward(y, out_grad, axis, logarithm);
           },
           "y"_a, "out_grad"_a, "axis"_a = -1);
  }
  nn.def("cross_entropy_forward", [](const Tensor& logits, const py::object& labels, Real smoothing) {
    return cross_entropy_forward(logits, labels_of("cross_entropy", labels, logits), smoothing);
  }, "logits"_a, "labels"_a, "label_smoothing"_a = 0.0f);
  nn.def("cross_entropy_backward", [](const Tensor& logits, const py::object& labels, const Tensor& out_grad,
                                      Real smoothing) {
    return cross_entropy_backward(logits, labels_of("cross_entropy_backward", labels, logits), out_grad, smoothing);
  }, "logits"_a, "labels"_a, "out_grad"_a, "label_smoothing"_a = 0.0f);
  for (const auto& [name, argument] : {std::pair{"dropout_forward", "x"}, {"dropout_backward", "out_grad"}}) {
    nn.def(name, [](const Tensor& x, Real p, Whole<std::uint64_t> seed, Whole<std::uint64_t> offset) {
      return dropout(x, float(p), seed, offset);
    }, py::arg(argument), "p"_a, "seed"_a, "offset"_a);
  }

  // Tensors share their storage with their copies here, so the updates reach Python's.
  nn.def("sgd_step", [](Tensors params, const Tensors& grads, Tensors momentums, Real lr, Real momentum,
                        Real weight_decay, bool nesterov) {
    sgd_step(params.values, grads.values, momentums.values, float(lr), float(momentum), float(weight_decay), nesterov);
  }, "params"_a, "grads"_a, "momentums"_a, "lr"_a, "momentum"_a, "weight_decay"_a, flag("nesterov"));
  nn.def("adam_step", [](Tensors params, const Tensors& grads, Tensors exp_avgs, Tensors exp_avg_sqs, Real lr,
                         Real beta1, Real beta2, Real eps, Real weight_decay, bool decoupled, Int step) {
    adam_step(params.values, grads.values, exp_avgs.values, exp_avg_sqs.values, lr, beta1, beta2, eps, weight_decay,
              decoupled, step);
  }, "params"_a, "grads"_a, "exp_avgs"_a, "exp_avg_sqs"_a, "lr"_a, "beta1"_a, "beta2"_a, "eps"_a, "weight_decay"_a,
         flag("decoupled"), "step"_a);
}

void bind_machine(py::module_& module) {
  module.def("live_tensors", &Storage::live, "Storages that are alive.");
  module.def("memory_allocated", &memory_allocated, "Bytes that live storages and running kernels hold.");
  module.def("memory_reserved", &memory_reserved, "Those and the bytes that are kept for reuse.");
  module.def("empty_cache", &empty_cache, "Give what is not in use back to the system.");
  module.def("cuda_available", [] { return false; });
  module.def("cpu_variants", &cpu_variants, "The instruction sets that this processor can run, fastest first.");
  module.def("cpu_variant", [] { return std::string(cpu_operators().name); });
  module.def("set_cpu_variant", [](const py::str& name) { set_cpu_variant(name); }, "name"_a);
  module.def("winograd_enabled", &winograd_enabled, "Whether 3x3 convolutions may be done by Winograd's algorithm.");
  module.def("enable_winograd", &enable_winograd, flag("enabled"),
             "Allow Winograd's algorithm for 3x3 convolutions, or use direct sums alone. With it an infinite value "
             "spreads over its tile as NaN, and values near the largest of float32 overflow earlier.");
  module.def("get_num_threads", [] {
#ifdef _OPENMP
    return omp_get_max_threads();
#else
    return 1;
#endif
  });
  module.def("set_num_threads", [](Int count) {
#ifdef _OPENMP
    const int most = std::max(64, omp_get_num_procs());  // the process ends where the system gives no more threads
#else
    const int most = 64;
#endif
    if (count < 1 || count > most) {
      refuse("set_num_threads: 1 to " + std::to_string(most) + " threads may be used, not " + std::to_string(count));
    }
#ifdef _OPENMP
    omp_set_num_threads(int(count));
#endif
  }, "count"_a);
}

}  // namespace

PYBIND11_MODULE(mytensor, module) {
  module.doc() = "Tensors of float32 and the operators of small networks, on the CPU.";
  bind_tensor(module);
  bind_functions(module);
  py::module_ nn = module.def_submodule("nn", "Layers, losses and optimizer updates.");
  bind_layers(nn);
  bind_machine(module);
}
