"""The work of tasks on the arrays of a place. It knows kernels and rows, no runtime and no strategy."""
