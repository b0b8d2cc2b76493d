"""The operators, one small class each: `compute` on arrays, `gradient` on nodes; below them the functions to call."""
