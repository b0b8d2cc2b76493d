// How arguments come in from Python. pybind11's own conversions take True for the size 1, a float32 of 2.5 for the
// stride 2, None for a null pointer, and a Tensor whose __init__ never ran for one that holds numbers; these do not.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <vector>

#include "tensor.h"

namespace mytensor {

// A whole number: what Python takes for an index, but no bool.
template <typename Number>
struct Whole {
  Number value;
  operator Number() const { return value; }
};

// A list or tuple of some length, or what can be indexed like one; no text.
template <typename Item>
struct List {
  std::vector<Item> values;
};
using Sizes = List<Whole<Index>>;

// A number of Python or NumPy that is not complex.
struct Real {
  double value;
  operator double() const { return value; }
};

}  // namespace mytensor

namespace pybind11::detail {

template <typename Number>
struct type_caster<mytensor::Whole<Number>> {
  PYBIND11_TYPE_CASTER(mytensor::Whole<Number>, const_name("int"));

  bool load(handle source, bool) {
    if (PyBool_Check(source.ptr()) || !PyIndex_Check(source.ptr())) return false;
    const object index = reinterpret_steal<object>(PyNumber_Index(source.ptr()));
    if (!index) PyErr_Clear();
    make_caster<Number> number;
    if (!index || !number.load(index, false)) return false;
    value.value = cast_op<Number>(number);
    return true;
  }
};

template <>
struct type_caster<mytensor::Real> {
  PYBIND11_TYPE_CASTER(mytensor::Real, const_name("float"));

  bool load(handle source, bool) {
    if (!PyFloat_Check(source.ptr()) && !PyLong_Check(source.ptr()) &&
        !isinstance(source, module_::import("numbers").attr("Real"))) {
      return false;
    }
    value.value = PyFloat_AsDouble(source.ptr());
    if (value.value == -1 && PyErr_Occurred()) {
      const bool too_large = PyErr_ExceptionMatches(PyExc_OverflowError);
      PyErr_Clear();
      if (too_large) throw value_error("a whole number is too large for a float");
      return false;
    }
    return true;
  }
};

template <>
struct type_caster<mytensor::Tensor> : type_caster_base<mytensor::Tensor> {
  bool load(handle source, bool convert) {
    return !source.is_none() && type_caster_base<mytensor::Tensor>::load(source, convert) &&
           reinterpret_cast<instance*>(source.ptr())->get_value_and_holder().holder_constructed();
  }
};

template <typename Item>
struct type_caster<mytensor::List<Item>> {
  PYBIND11_TYPE_CASTER(mytensor::List<Item>, const_name("Sequence[") + make_caster<Item>::name + const_name("]"));

  bool load(handle source, bool) {
    constexpr ssize_t kMost = 1 << 16;  // an array whose elements are repeated may claim any length
    if (!isinstance<sequence>(source) || isinstance<str>(source) || isinstance<bytes>(source)) return false;
    const ssize_t length = PySequence_Size(source.ptr());
    if (length > kMost) throw value_error("a list of " + std::to_string(length) + " is too long");
    for (ssize_t i = 0; i < length; ++i) {
      const object item = reinterpret_steal<object>(PySequence_GetItem(source.ptr(), i));
      make_caster<Item> caster;
      if (!item || !caster.load(item, false)) return give_up();
      value.values.push_back(cast_op<Item&>(caster));
    }
    return length >= 0 || give_up();
  }

 private:
  // It is no list, whatever it said of itself.
  static bool give_up() {
    PyErr_Clear();
    return false;
  }
};

}  // namespace pybind11::detail
