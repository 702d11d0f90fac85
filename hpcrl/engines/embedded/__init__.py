"""The embedded inference engine: a Hugging Face causal language model behind SGLang's own routes, in this process."""
