"""Known bugs of other frameworks: found at the buggy commit, silent at the fix. Their code is not kept here."""
