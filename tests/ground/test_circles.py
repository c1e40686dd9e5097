"""Packages that must not import each other, not even for types."""

from tests.ground.test_floors import ROOT, imports, module_name


def test_quant_imports_no_models() -> None:
    files = sorted((ROOT / "engine" / "quant").rglob("*.py"))
    assert len(files) > 10
    found = {
        f"{module_name(file)} imports {each}"
        for file in files
        for each in imports(file.read_text(), module_name(file), file.name == "__init__.py")
        if each.startswith("engine.models")
    }
    assert found == set()


def test_the_fused_chain_uses_no_isinstance() -> None:
    """Parts and products declare which kernels are launched for them."""
    models, quant = ROOT / "engine" / "models", ROOT / "engine" / "quant"
    for file in (models / "fused.py", *(models / "layers").glob("*.py"), quant / "product.py"):
        assert "isinstance(" not in file.read_text(), file


def test_only_the_app_imports_the_apis_of_other_servers() -> None:
    """Neutral code imports none of them, and none imports another."""
    server, apis = ROOT / "engine" / "server", ("openai", "anthropic", "ollama")
    found = set()
    for file in server.rglob("*.py"):
        own = file.relative_to(server).parts[0]
        for each in imports(file.read_text(), module_name(file), file.name == "__init__.py"):
            named = each.removeprefix("engine.server.").partition(".")[0]
            if named in apis and named != own:
                found.add(own)
    assert found == {"app.py"}
