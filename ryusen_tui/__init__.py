"""The terminal dashboard: a reader and operator of any Ryusen server, over its HTTP API and change stream alone.

Pure modules (`spans`, `board`, `tables`, `waterfall`, `story`, `resolving`) turn documents into lines; `link` and `feed` bring documents;
`app`, `panes`, `runview` and the dialogs show them. Knows no server type, no SDK and no command line.
"""
