"""Tokenization, detokenization, stop strings and chat templates. Imports neither torch nor transformers."""

from engine.text.chat import ChatFormat
from engine.text.detokenize import Detokenizer
from engine.text.stops import StopFinder
from engine.text.template import TemplateRenderer
from engine.text.tokenizer import Tokenizer

__all__ = ["ChatFormat", "Detokenizer", "StopFinder", "TemplateRenderer", "Tokenizer"]
