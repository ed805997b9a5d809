#!/usr/bin/env bash
# Makes two Python virtual environments: FOLDER/vllm as ../vllm_cpu does, and FOLDER/sglang, which reads the former's
# packages (SGLang's kernels for CPUs include vLLM's) and adds its own.
#
#     ./make_environment.sh FOLDER
#
# Run it again after an interruption, or after requirements.txt has changed; a complete environment is left as it is,
# another one made anew.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
[[ $# -eq 1 && "$1" != -* ]] || { echo "make_environment.sh: usage: $0 FOLDER" >&2; exit 1; }
mkdir -p "$1"
folder=$(cd "$1" && pwd)
"$here/../vllm_cpu/make_environment.sh" "$folder/vllm"

environment="$folder/sglang"
complete="$environment/complete-requirements.txt"
if cmp -s "$complete" "$here/requirements.txt"; then
    echo "$environment is complete: $environment/bin/sglang"
    exit 0
fi
packages() { "$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }

echo "[1/3] virtual environment in $environment, 1 GB"
"$folder/vllm/bin/python" -m venv --clear "$environment"
"$environment/bin/python" -m pip install --no-deps --only-binary :all: --quiet --disable-pip-version-check \
    -r "$here/requirements.txt"
echo "[2/3] vLLM's packages, and what stands in for torchvision and torchaudio"
own=$(packages "$environment")
packages "$folder/vllm" >"$own/vllm_environment.pth"
cp "$here/stand_ins.py" "$own/stand_ins.py"
echo "import stand_ins" >"$own/stand_ins.pth"
# transformers asks for their versions.
for name in torchvision torchaudio; do
    mkdir -p "$own/$name-0.0.0.dist-info"
    printf 'Metadata-Version: 2.1\nName: %s\nVersion: 0.0.0\n' "$name" >"$own/$name-0.0.0.dist-info/METADATA"
done
echo "[3/3] SGLang's options"
log="$environment/help.log"
"$environment/bin/python" -m sglang.launch_server --help >/dev/null 2>"$log" ||
    { echo "make_environment.sh: SGLang does not start; see $log." >&2; exit 1; }
cp "$here/requirements.txt" "$complete"
echo "$environment/bin/sglang: SGLang $(sed -n 's/^sglang==//p' "$here/requirements.txt")"
