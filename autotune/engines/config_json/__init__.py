"""Describe a model by its Hugging Face ``config.json``."""

from .keys import read_json as read_json
from .model import model_from_file as model_from_file
from .plain import INDEX as INDEX

CONFIG = "config.json"
