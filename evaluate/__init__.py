"""Stage 3: metrics of frame embeddings, and the tables that compare them."""
