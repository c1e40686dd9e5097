from minichat.cli import main

raise SystemExit(main())
