"""How right the sentinel is: silent on right code, loud on wrong code, measured on a corpus in many dialects."""
