#!/bin/sh
# Makes .venv and installs Trimtab into it, once:   sh scripts/setup.sh [EXTRA ...]
# This is the only place that installs anything. It needs Python 3.11 or newer and nothing else; PYTHON=... chooses one.
# TORCH_BUILD=... chooses the build of torch: auto (the default: on Linux without a GPU the CPU build, else what pip
# brings), cpu, or cuda (the one that the package index holds for Linux, also where there is no GPU).
# VENV=... is the folder of the environment (.venv), PACKAGE=... what is installed (this checkout, in place).
set -u

cd "$(dirname "$0")/.." || exit 1

venv=${VENV:-.venv}
package=${PACKAGE:-.}
python=$venv/bin/python
log=$venv/setup.log
extras=$(printf '%s\n' "$@" | sort -u | tr '\n' ',' | sed 's/^,*//; s/,*$//')
stamp=$venv/.setup-$(printf '%s' "${extras:-none}" | tr ',' '-')

say() { printf 'setup: %s\n' "$1"; }

fail() {
    printf 'setup: %s\n' "$1" >&2
    exit 1
}

# What the install depends on; the path is part of it because the package is installed in place.
key() {
    { cat pyproject.toml constraints.txt && printf '%s\n' "$extras" "$package" && pwd -P; } | cksum
}

# Runs pip quietly; its words go to the log, and its errors to the screen if it fails.
pip_install() {
    said=$(wc -l <"$log")
    "$python" -m pip install --disable-pip-version-check "$@" >>"$log" 2>&1 && return 0
    tail -n +$((said + 1)) "$log" | grep 'ERROR: ' | tail -n 3 >&2
    return 1
}

# ------------------------------------------------------------------------------------------------------------- python

runs() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

# Prints the first Python that is new enough and can make a virtual environment.
find_python() {
    incomplete=
    for candidate in ${PYTHON:+"$PYTHON"} python3.13 python3.12 python3.11 python3 python; do
        runs "$candidate" || continue
        if "$candidate" -c 'import venv, ensurepip' >/dev/null 2>&1; then
            command -v "$candidate"
            return 0
        fi
        incomplete=${incomplete:-$candidate}
    done
    if [ -n "$incomplete" ]; then
        version=$("$incomplete" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
        fail "$incomplete cannot make virtual environments: on Debian or Ubuntu run 'apt install python$version-venv' (elsewhere, reinstall Python with venv and ensurepip), then run this again."
    fi
    fail "Python 3.11 or newer was not found: install it ('apt install python3 python3-venv', 'brew install python', or python.org), or name one with PYTHON=/path/to/python, then run this again."
}

make_venv() {
    if runs "$python"; then
        "$python" -m pip --version >/dev/null 2>&1 || "$python" -m ensurepip >/dev/null 2>&1 ||
            fail "$venv has no pip: delete $venv, then run this again."
        return 0
    fi
    found=$(find_python) || exit 1
    say "making $venv with $found ($("$found" -c 'import platform; print(platform.python_version())')) ..."
    "$found" -m venv --clear "$venv" ||
        fail "$found could not make $venv: look at the message above (a full disk, a folder that is not yours), then run this again."
}

# -------------------------------------------------------------------------------------------------------------- torch

has_torch() {
    "$python" -c 'import sys; from importlib.metadata import version; sys.exit(version("torch").split("+")[0] != sys.argv[1])' "$1" >/dev/null 2>&1
}

# True if pip would install a CUDA build. pip downloads even on a dry run, so its words are watched as it resolves and it
# is stopped at the first that tells: a CUDA library, a wheel marked cpu, or the size of the wheel (CPU builds are about
# 200 MB, CUDA builds 500 MB and more).
pip_would_bring_cuda() {
    words=$venv/setup-probe.log
    PIP_QUIET=0 PIP_PROGRESS_BAR=off "$python" -m pip install --disable-pip-version-check --dry-run --ignore-installed \
        -c constraints.txt "torch==$1" >"$words" 2>&1 &
    probe=$!
    trap 'kill "$probe" 2>/dev/null; exit 130' INT TERM
    answer=
    while [ -z "$answer" ]; do
        kill -0 "$probe" 2>/dev/null || answer=cpu
        if grep -E -q '(Collecting|Processing|Downloading|Using cached|Would install|information for).*[ /](nvidia|cuda|triton)[-_]?' "$words" ||
            grep -E -q 'torch-[^ ]*\.whl \(([4-9][0-9][0-9]|[0-9][0-9][0-9][0-9]+)\.[0-9] MB' "$words"; then
            answer=cuda
        elif grep -E -q 'torch-[^ ]*cpu[^ ]*\.whl|torch-[^ ]*\.whl \([0-9.]+ MB' "$words"; then
            answer=cpu
        elif [ -z "$answer" ]; then
            sleep 1
        fi
    done
    kill "$probe" 2>/dev/null
    wait "$probe" 2>/dev/null
    trap - INT TERM
    [ "$answer" = cuda ]
}

# The CPU build by way of uv, which knows where each build lives. False if there is no uv or it cannot.
cpu_torch_by_uv() {
    for uv in "$(command -v uv)" "$venv/bin/uv"; do
        if [ "$uv" = "$venv/bin/uv" ]; then
            "$python" -m pip install --disable-pip-version-check uv >>"$log" 2>&1 || return 1
        fi
        [ -x "$uv" ] || continue
        "$uv" pip install --python "$python" --torch-backend=cpu -c constraints.txt "torch==$1" >>"$log" 2>&1 && return 0
    done
    return 1
}

install_torch() {
    torch=$(sed -n 's/^torch==//p' constraints.txt)
    has_torch "$torch" && return 0
    say "installing torch $torch ... (details: $log)"
    wanted="torch==$torch"
    case ${TORCH_BUILD:-auto} in
        auto)
            if [ "$(uname -s)" = Linux ] && ! command -v nvidia-smi >/dev/null 2>&1 && pip_would_bring_cuda "$torch"; then
                say "there is no GPU here and pip would bring torch's CUDA build; asking uv for the CPU build ..."
                cpu_torch_by_uv "$torch" && return 0
                say "uv could not; going on with pip and the CUDA build, a download of several GB (stop with Ctrl-C)."
            fi ;;
        cpu)
            cpu_torch_by_uv "$torch" && return 0
            fail "TORCH_BUILD=cpu: torch's CPU build could not be installed with uv: look into $log, or leave TORCH_BUILD out." ;;
        cuda) wanted="torch===$torch" ;; # exactly this version, so never one marked +cpu
        *) fail "TORCH_BUILD=$TORCH_BUILD is no build: give auto, cpu or cuda." ;;
    esac
    pip_install -c constraints.txt "$wanted" ||
        fail "torch $torch could not be installed: check the network, the disk (it needs 1 GB, with CUDA 8 GB) and pip's settings, then run this again; all of pip's words are in $log."
}

# --------------------------------------------------------------------------------------------------------------- main

[ -x "$python" ] && [ -x "$venv/bin/trimtab" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$(key)" ] && exit 0

make_venv
: >"$log"
install_torch
say "installing trimtab${extras:+ with $extras} ..."
[ "$package" = . ] && in_place=-e || in_place=
pip_install -c constraints.txt $in_place "$package${extras:+[$extras]}" ||
    fail "trimtab${extras:+[$extras]} could not be installed: check the network and pip's settings, then run this again; all of pip's words are in $log."
key >"$stamp"
say "ready."
