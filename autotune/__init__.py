"""autotune: find the serving command that gives an LLM node its highest throughput."""

__version__ = "0.1.0"
