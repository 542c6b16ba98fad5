// tinymp in Pyodide: node pyodide.mjs PYODIDE REPOSITORY. Runs inside.py where NumPy can be loaded (from the network, or from
// the folder PYODIDE); else its Python compiles every file of the package, with warnings, and says what could not be run.
const [folder, repository] = process.argv.slice(2);
const { loadPyodide } = await import(`${folder}/pyodide.mjs`);
const python = await loadPyodide({ env: { MPLBACKEND: "agg", HOME: "/tmp" } });
python.mountNodeFS("/repo", repository);
console.log(python.runPython("import sys; f'Pyodide: Python {sys.version.split()[0]}, integers up to {sys.maxsize:,}'"));
try {
  await python.loadPackage(["numpy", "tqdm", "matplotlib", "ml-dtypes", "safetensors", "pillow"], { messageCallback() {} });
} catch (error) {
  console.log(`packages: ${error.message}`);
}
python.runPython(`
import os, sys, threading, warnings
from pathlib import Path
os.chdir("/repo")
try:
    import numpy
except ModuleNotFoundError:
    caught, files = [], sorted(Path("/repo/tinymp").rglob("*.py"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for file in files:
            compile(file.read_text("utf-8"), str(file), "exec")
    for one in caught:
        print(f"{one.filename}:{one.lineno}: {one.message}")
    print(f"compiled {len(files)} files, {len(caught)} warnings")
    print("no NumPy: its wheel is in Pyodide's distribution, which cannot be had here; nothing of tinymp was imported")
else:
    sys.path[:0] = ["/repo", "/repo/tests"]
    from browser import inside
    inside.main("/tmp/out")
`);
