# Read where ggml begins: what holds for the rest of llama.cpp does not hold for its arithmetic.
# Its products with AMX tiles break off with a general protection fault (b11434 on a virtual Xeon that has AMX), and only
# products of quantised weights use them: without the macro they are compiled for AVX-512, as on machines without AMX.
set(CMAKE_CXX_FLAGS_RELEASE "-O3 -DNDEBUG -U__AMX_INT8__")
set(CMAKE_C_FLAGS_RELEASE "-O3 -DNDEBUG -U__AMX_INT8__")
