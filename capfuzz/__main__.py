"""`python -m capfuzz`"""

from capfuzz.cli.main import main

main()
