"""One file per question, with its cases(setup), and page(results) if a plain table does not answer it."""
