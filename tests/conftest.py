import os
import pathlib
import sys

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as many processes as cores: their BLAS threads would only fight
sys.path.insert(0, str(pathlib.Path(__file__).parent))  # `from oracle import check`
