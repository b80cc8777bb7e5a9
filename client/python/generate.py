"""Makes src/safedelivr/schema.py from api/openapi.yaml."""

import subprocess
import sys

subprocess.run(
    [
        sys.executable, "-m", "datamodel_code_generator",
        "--input", "../../api/openapi.yaml",
        "--input-file-type", "openapi",
        "--output", "src/safedelivr/schema.py",
        "--output-model-type", "typing.TypedDict",
        "--target-python-version", "3.11",
        "--formatters", "builtin",
        "--use-schema-description",
        "--disable-timestamp",
    ],
    check=True,
)  # fmt: skip
