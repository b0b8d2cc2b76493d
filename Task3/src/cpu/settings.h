// What a user may choose for the kernels, as they see it: a plain function, so that none of it is compiled into a
// variant.
#pragma once

namespace mytensor {

// Whether 3x3 convolutions may be done by Winograd's algorithm: faster, and a digit less exact.
bool winograd_enabled();

}  // namespace mytensor
