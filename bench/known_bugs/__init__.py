"""Known bugs of other frameworks: found at the buggy commit, silent at the fix. Bindings are ours; their code is not here."""
