"""Stage 3: metrics for frame embeddings, and tables that compare them."""
