"""Trees of several requests as kernels take them: a word of ancestors per node, any number of nodes per tree."""
