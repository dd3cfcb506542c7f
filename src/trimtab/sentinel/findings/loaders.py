"""How a script of a finding gets at the function: the only place with the text of its loaders.

By import where that works; else out of its file, with a loader of some forty lines. What neither can load needs the
long runner, which carries our whole loader.
"""

IMPORT = '''def imported():
    """The function, and a lookup for other names of its file."""
    sys.path[:0] = [str(ROOT / root) for root in {roots!r}]
    module = importlib.import_module({module!r})
    if not Path(module.__file__).resolve().is_relative_to(ROOT):
        raise ImportError(f"{{module.__name__}} was imported from {{module.__file__}}, which is not in {{ROOT}}")
    return operator.attrgetter({name!r})(module), lambda name: getattr(module, name)


'''

ONLY_IMPORT = """def boundary():
    return imported()


"""

TAKEN = (
    """def boundary():
    try:
        return imported()
    except Exception as error:  # absent dependencies, no accelerator
        print(f"not imported, but taken out of its file: {{type(error).__name__}}: {{error}}", file=sys.stderr)
    space = taken({file!r})
    return operator.attrgetter({name!r})(types.SimpleNamespace(**space)), space.__getitem__


"""
    + '''FILES = {{}}


def taken(file):
    """What a file of the checkout defines. What cannot run here is left out: absent modules, decorators, bases."""
    if file in FILES:
        return FILES[file]
    space = FILES[file] = {{"__name__": file.removesuffix(".py").replace("/", "."), "__file__": str(ROOT / file)}}
    for node in ast.parse((ROOT / file).read_text("utf-8-sig")).body:
        own = {{}}
        for name in node.names if isinstance(node, (ast.Import, ast.ImportFrom)) else ():
            own[name.asname or name.name] = of_checkout(file, node, name)
        space |= {{name: value for name, value in own.items() if value is not None}}
        if own and None not in own.values():
            continue
        try:
            run(node, space)
        except Exception:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                node.decorator_list = []
                vars(node).update({{"bases": [], "keywords": []}} if isinstance(node, ast.ClassDef) else {{}})
                with contextlib.suppress(Exception):
                    run(node, space)
    space |= {given}
    return space


def run(node, space):
    module = ast.Module([node], [])
    exec(compile(module, space["__file__"], "exec", __future__.annotations.compiler_flag, True), space)


def of_checkout(file, node, name):
    """What an import takes from another file of the checkout; None if it takes nothing from there."""
    level, is_from = getattr(node, "level", 0), isinstance(node, ast.ImportFrom)
    if not is_from and not name.asname:
        return None
    for top in [Path(file).parents[level - 1]] if level else map(Path, {roots!r}):
        base = top.joinpath(*((node.module or "") if is_from else name.name).split("."))
        inside = [f"{{(base / name.name).as_posix()}}.py"] if is_from else []
        for one in (*inside, f"{{base.as_posix()}}.py", (base / "__init__.py").as_posix()):
            if (ROOT / one).is_file():
                space = taken(one)
                return space.get(name.name) if is_from and one not in inside else types.SimpleNamespace(**space)
    return None


'''
)

LONG = '''def boundary():
    """The function, taken out of its file by the loader of the runner."""
    spec = importlib.util.spec_from_file_location("run_validation", Path(__file__).with_name("run_validation.py"))
    runner = sys.modules["run_validation"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(runner)
    loaded = runner.load(runner.Spec.from_data({spec!r}), runner.Tree.folder(ROOT), {given})
    return loaded, loaded.get


'''
