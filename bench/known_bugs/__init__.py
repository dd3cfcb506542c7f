"""Known bugs of other frameworks: found at the buggy commit, not reported at the fix. Their code is not kept here."""
