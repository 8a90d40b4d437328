from divopd.cli import main

raise SystemExit(main())
