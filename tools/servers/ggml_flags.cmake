# Read where ggml begins: what holds for the rest of llama.cpp does not hold for its arithmetic.
set(CMAKE_CXX_FLAGS_RELEASE "-O3 -DNDEBUG")
