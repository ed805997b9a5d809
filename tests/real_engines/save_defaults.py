"""Saves every causal language model's configuration at its class's defaults; runs in an
environment with transformers.

    python save_defaults.py FOLDER
"""

import os
import sys
from pathlib import Path

os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
import transformers
from transformers.models.auto import configuration_auto, modeling_auto


def main() -> None:
    """Write a folder for each kind of model that can be made without figures."""
    names = {
        **modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
        **modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    }
    left = []
    for kind, name in sorted(names.items()):
        try:
            config = configuration_auto.CONFIG_MAPPING[kind]()
            config.architectures = [name if isinstance(name, str) else name[0]]
            config.dtype = "bfloat16"
            config.save_pretrained(Path(sys.argv[1], kind))
        except Exception:
            left.append(kind)
    count = len(names) - len(left)
    print(f"transformers {transformers.__version__}: {count} saved; not at defaults: {left}")


if __name__ == "__main__":
    main()
