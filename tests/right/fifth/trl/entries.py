from tests.right.entry import Entry

ENTRIES: list[Entry] = []
