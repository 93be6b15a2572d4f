"""Commands that drive several stages: the report, byov-embed, byov-align."""
