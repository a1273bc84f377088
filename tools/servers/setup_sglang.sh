#!/usr/bin/env bash
# SGLang 0.5.20 for the CPU in an environment of its own: setup_sglang.sh FOLDER [PYTHON]. About 2 minutes, 3 GB.
#
# No build of its kernels for the CPU is to be had. A stand-in raises wherever one is called, and brings the few that
# greedy n-gram speculation needs in plain PyTorch; so speculation here tests scheduling and API, not SGLang's kernels.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
folder=$1 python=${2:-python3}
[[ -e $folder/.ready ]] && exit 0
rm -rf "$folder"
"$python" -m venv "$folder"
pip=("$folder/bin/pip" install --quiet)
"${pip[@]}" --upgrade pip
"${pip[@]}" torch==2.13.0+cpu
"${pip[@]}" --no-deps sglang==0.5.20 triton==3.7.1 torchvision==0.28.0
"${pip[@]}" transformers==5.12.1 aiohttp fastapi uvicorn uvloop pyzmq msgspec orjson pybase64 psutil pillow requests \
    'numpy<2.5' scipy sentencepiece tiktoken einops python-multipart prometheus-client setproctitle partial_json_parser \
    interegular packaging pydantic zstandard xxhash watchfiles compressed-tensors gguf IPython openai==2.6.1 cloudpickle \
    datasets nvidia-ml-py
"${pip[@]}" --no-deps apache-tvm-ffi==0.1.11 xgrammar==0.2.1 llguidance outlines==0.1.11 outlines_core lark diskcache \
    nest_asyncio referencing jsonschema jsonschema-specifications rpds-py openai-harmony==0.0.4 ninja numba==0.65.1 \
    llvmlite==0.47.0 blobfile==3.0.0 easydict soundfile build lxml filelock cffi pycparser
site=$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
: > "$site/torchvision/_meta_registrations.py"  # registers operators that only the CUDA build has
mkdir -p "$site/sgl_kernel"
cp "$here/sgl_kernel_stand_in.py" "$site/sgl_kernel/__init__.py"
"$folder/bin/python" "$here/patch_sglang.py" "$site"
touch "$folder/.ready"
