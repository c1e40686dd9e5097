"""Who runs next, and who must give way. Integers only."""
