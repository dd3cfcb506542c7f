from tests.bad_input.row import Row


def rows() -> list[Row]:
    return [Row("nothing", lambda: 1, means=1)]
