"""Stage 3: how good frame embeddings are, by the benchmark's own measures."""
