// All kernels, compiled once for each instruction set: -DVARIANT=baseline, avx2 or avx512 with the flags that allow it.
#include "convolution.h"
#include "elementwise.h"
#include "loss.h"
#include "narrow_convolution.h"
#include "normalization.h"
#include "optimizers.h"
#include "pooling.h"
#include "random.h"

#define NAME_OF(variant) #variant
#define NAME(variant) NAME_OF(variant)
#define TABLE_OF(variant) operators_##variant
#define TABLE(variant) TABLE_OF(variant)

namespace mytensor {

extern const Operators TABLE(VARIANT);
const Operators TABLE(VARIANT) = {
    NAME(VARIANT),
    fill, unary, derivative, binary, copy, reduce,
    matmul, linear_forward, linear_backward, conv_forward, conv_backward,
    narrow_conv_forward, narrow_conv_backward,
    max_pool_forward, max_pool_backward, average_pool_forward, average_pool_backward,
    batch_norm_statistics, batch_norm_apply, batch_norm_backward,
    softmax_forward, softmax_backward, cross_entropy_forward, cross_entropy_backward,
    dropout, sgd, adam,
};

}  // namespace mytensor
