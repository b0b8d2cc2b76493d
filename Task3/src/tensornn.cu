// The Python module `mytensor`: converts arguments and calls the checked functions; nothing is computed here.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "allocator.h"
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
using OptionalAxes = std::optional<std::variant<Index, std::vector<Index>>>;

// The dense float32 array of what NumPy makes of `object`; complex numbers, text and objects are refused.
py::array_t<float> float_array(const py::object& object) {
  const py::module_ numpy = py::module_::import("numpy");
  const py::array array = numpy.attr("asarray")(object);
  if (std::string("biuf").find(array.dtype().kind()) == std::string::npos) {
    throw py::type_error("an array of numbers is needed, not of dtype " + py::str(array.dtype()).cast<std::string>());
  }
  return numpy.attr("ascontiguousarray")(array, "dtype"_a = "float32").attr("reshape")(array.attr("shape"));
}

Shape shape_of(const py::array& array) {
  return Shape(std::vector<Index>(array.shape(), array.shape() + array.ndim()));
}

Tensor from_numpy(const py::object& object, Device device) {
  const py::array_t<float> array = float_array(object);
  Tensor result(shape_of(array), device);
  std::memcpy(result.data(), array.data(), std::size_t(array.size()) * sizeof(float));
  return result;
}

// A new array: it stays what it is when the tensor changes or goes.
py::array_t<float> to_numpy(const Tensor& tensor) {
  const Tensor rows = tensor.in_layout(Layout::RowMajor);
  py::array_t<float> result(tensor.shape().sizes());
  std::memcpy(result.mutable_data(), rows.data(), std::size_t(rows.count()) * sizeof(float));
  return result;
}

std::optional<std::vector<Index>> axes_of(const OptionalAxes& axes) {
  if (!axes) return std::nullopt;
  if (const Index* axis = std::get_if<Index>(&*axes)) return std::vector<Index>{*axis};
  return std::get<std::vector<Index>>(*axes);
}

// An operand that is a number becomes a tensor on the other operand's device.
Tensor operand(const py::object& object, const py::object& other) {
  if (py::isinstance<Tensor>(object)) return object.cast<Tensor>();
  if (!py::isinstance<Tensor>(other)) throw py::type_error("at least one operand must be a Tensor");
  if (!PyFloat_Check(object.ptr()) && !PyLong_Check(object.ptr()) && !py::hasattr(object, "__float__")) {
    throw py::type_error("an operand must be a Tensor or a number, not " +
                         py::str(py::type::of(object)).cast<std::string>());
  }
  return full(Shape{}, object.cast<float>(), other.cast<Tensor>().device());
}

Labels labels_of(const py::object& object, const Tensor& logits) {
  py::array array;
  if (py::isinstance<Tensor>(object)) {
    const Tensor tensor = object.cast<Tensor>();
    if (tensor.shape().rank() == 2) return {{}, tensor.in_layout(Layout::RowMajor)};
    array = to_numpy(tensor);
  } else {
    array = py::module_::import("numpy").attr("asarray")(object);
    if (array.ndim() == 2) return {{}, from_numpy(array, logits.device())};
    if (std::string("iuf").find(array.dtype().kind()) == std::string::npos) {
      throw py::type_error("labels must be numbers, not of dtype " + py::str(array.dtype()).cast<std::string>());
    }
  }
  if (array.ndim() != 1) refuse("cross_entropy: labels must have shape (N,) or (N, K), not " + shape_of(array).text());
  const auto values = py::array_t<double, py::array::c_style | py::array::forcecast>(array);  // exact up to 2^53
  return checked_labels({values.data(), values.data() + values.size()}, logits);
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
      .def(py::init([](const std::vector<Index>& shape, Device device) {
             return Tensor(Shape(shape), device, Layout::RowMajor, true);
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
      .def("fill_", &fill, "value"_a)
      .def("__repr__", [](const Tensor& tensor) {
        return "mytensor.Tensor(" + tensor.shape().text() + ", " + (tensor.device() == Device::CPU ? "CPU" : "GPU") + ")";
      });
  module.def("full", [](const std::vector<Index>& shape, float value, Device device) {
    return full(Shape(shape), value, device);
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
    return reduce(Reduction::Sum, x, axes_of(axes), keepdims);
  }, "x"_a, "axes"_a = py::none(), "keepdims"_a = false);
  module.def("mean", [](const Tensor& x, const OptionalAxes& axes, bool keepdims) {
    return mean(x, axes_of(axes), keepdims);
  }, "x"_a, "axes"_a = py::none(), "keepdims"_a = false);
  module.def("max", [](const Tensor& x, const OptionalAxes& axes, bool keepdims) {
    return reduce(Reduction::Max, x, axes_of(axes), keepdims);
  }, "x"_a, "axes"_a = py::none(), "keepdims"_a = false);
  module.def("reshape", &reshape, "x"_a, "shape"_a);
  module.def("transpose", &transpose, "x"_a, "axes"_a = py::none());
  module.def("broadcast_to", [](const Tensor& x, const std::vector<Index>& shape) {
    return broadcast_to(x, Shape(shape));
  }, "x"_a, "shape"_a);
  module.def("matmul", &matmul, "a"_a, "b"_a, "transpose_a"_a = false, "transpose_b"_a = false);
}

void bind_layers(py::module_& nn) {
  nn.def("linear_forward", &linear_forward, "x"_a, "weight"_a, "bias"_a = py::none());
  nn.def("linear_backward", [](const Tensor& x, const Tensor& weight, const OptionalTensor& bias, const Tensor& out_grad,
                               bool need_x) {
    return linear_backward(x, weight, bias.has_value(), out_grad, need_x);
  }, "x"_a, "weight"_a, "bias"_a, "out_grad"_a, "need_x"_a = true);
  nn.def("conv_forward", [](const Tensor& x, const Tensor& weight, const OptionalTensor& bias, Index stride_h,
                            Index stride_w, Index pad_h, Index pad_w) {
    return conv_forward(x, weight, bias, {stride_h, stride_w, pad_h, pad_w});
  }, "x"_a, "weight"_a, "bias"_a, "stride_h"_a, "stride_w"_a, "pad_h"_a, "pad_w"_a);
  nn.def("conv_backward", [](const Tensor& x, const Tensor& weight, const OptionalTensor& bias, const Tensor& out_grad,
                             Index stride_h, Index stride_w, Index pad_h, Index pad_w, bool need_x) {
    return conv_backward(x, weight, bias.has_value(), out_grad, {stride_h, stride_w, pad_h, pad_w}, need_x);
  }, "x"_a, "weight"_a, "bias"_a, "out_grad"_a, "stride_h"_a, "stride_w"_a, "pad_h"_a, "pad_w"_a, "need_x"_a = true);

  const auto bind_pooling = [&](const char* forward, const char* backward, Pooling kind) {
    nn.def(forward, [kind](const Tensor& x, Index kernel_h, Index kernel_w, Index stride_h, Index stride_w, Index pad_h,
                           Index pad_w) {
      return pool_forward(kind, x, kernel_h, kernel_w, {stride_h, stride_w, pad_h, pad_w});
    }, "x"_a, "kernel_h"_a, "kernel_w"_a, "stride_h"_a, "stride_w"_a, "pad_h"_a, "pad_w"_a);
    nn.def(backward, [kind](const Tensor& x, const Tensor& out_grad, Index kernel_h, Index kernel_w, Index stride_h,
                            Index stride_w, Index pad_h, Index pad_w) {
      return pool_backward(kind, x, out_grad, kernel_h, kernel_w, {stride_h, stride_w, pad_h, pad_w});
    }, "x"_a, "out_grad"_a, "kernel_h"_a, "kernel_w"_a, "stride_h"_a, "stride_w"_a, "pad_h"_a, "pad_w"_a);
  };
  bind_pooling("maxpool_forward", "maxpool_backward", Pooling::Max);
  bind_pooling("avgpool_forward", "avgpool_backward", Pooling::Average);

  nn.def("batchnorm_forward", &batch_norm_forward, "x"_a, "weight"_a, "bias"_a, "running_mean"_a, "running_var"_a,
         "training"_a, "momentum"_a, "eps"_a);
  nn.def("batchnorm_backward", &batch_norm_backward, "x"_a, "weight"_a, "mean"_a, "rstd"_a, "out_grad"_a, "training"_a);
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
           [logarithm](const Tensor& x, Index axis) { return softmax_forward(x, axis, logarithm); }, "x"_a,
           "axis"_a = -1);
    nn.def(logarithm ? "log_softmax_backward" : "softmax_backward",
           [logarithm](const Tensor& y, const Tensor& out_grad, Index axis) {
             return softmax_backward(y, out_grad, axis, logarithm);
           },
           "y"_a, "out_grad"_a, "axis"_a = -1);
  }
  nn.def("cross_entropy_forward", [](const Tensor& logits, const py::object& labels, float smoothing) {
    return cross_entropy_forward(logits, labels_of(labels, logits), smoothing);
  }, "logits"_a, "labels"_a, "label_smoothing"_a = 0.0f);
  nn.def("cross_entropy_backward", [](const Tensor& logits, const py::object& labels, const Tensor& out_grad,
                                      float smoothing) {
    return cross_entropy_backward(logits, labels_of(labels, logits), out_grad, smoothing);
  }, "logits"_a, "labels"_a, "out_grad"_a, "label_smoothing"_a = 0.0f);
  nn.def("dropout_forward", &dropout, "x"_a, "p"_a, "seed"_a, "offset"_a);
  nn.def("dropout_backward", &dropout, "out_grad"_a, "p"_a, "seed"_a, "offset"_a);

  // Tensors share their storage with their copies here, so the updates reach Python's.
  nn.def("sgd_step", [](std::vector<Tensor> params, const std::vector<Tensor>& grads, std::vector<Tensor> momentums,
                        float lr, float momentum, float weight_decay, bool nesterov) {
    sgd_step(params, grads, momentums, lr, momentum, weight_decay, nesterov);
  }, "params"_a, "grads"_a, "momentums"_a, "lr"_a, "momentum"_a, "weight_decay"_a, "nesterov"_a);
  nn.def("adam_step", [](std::vector<Tensor> params, const std::vector<Tensor>& grads, std::vector<Tensor> exp_avgs,
                         std::vector<Tensor> exp_avg_sqs, double lr, double beta1, double beta2, double eps,
                         double weight_decay, bool decoupled, Index step) {
    adam_step(params, grads, exp_avgs, exp_avg_sqs, lr, beta1, beta2, eps, weight_decay, decoupled, step);
  }, "params"_a, "grads"_a, "exp_avgs"_a, "exp_avg_sqs"_a, "lr"_a, "beta1"_a, "beta2"_a, "eps"_a, "weight_decay"_a,
         "decoupled"_a, "step"_a);
}

void bind_machine(py::module_& module) {
  module.def("live_tensors", &Storage::live, "Storages that are alive.");
  module.def("memory_allocated", &memory_allocated, "Bytes that live storages and running kernels hold.");
  module.def("memory_reserved", &memory_reserved, "Those and the bytes that are kept for reuse.");
  module.def("empty_cache", &empty_cache, "Give what is not in use back to the system.");
  module.def("cuda_available", [] { return false; });
  module.def("cpu_variants", &cpu_variants, "The instruction sets that this processor can run, fastest first.");
  module.def("cpu_variant", [] { return std::string(cpu_operators().name); });
  module.def("set_cpu_variant", &set_cpu_variant, "name"_a);
  module.def("winograd_enabled", &winograd_enabled, "Whether 3x3 convolutions may be done by Winograd's algorithm.");
  module.def("enable_winograd", &enable_winograd, "enabled"_a, "Allow Winograd's algorithm, or use direct sums alone.");
  module.def("get_num_threads", [] {
#ifdef _OPENMP
    return omp_get_max_threads();
#else
    return 1;
#endif
  });
  module.def("set_num_threads", [](int count) {
    if (count < 1) refuse("set_num_threads: at least one thread is needed, not " + std::to_string(count));
#ifdef _OPENMP
    omp_set_num_threads(count);
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
