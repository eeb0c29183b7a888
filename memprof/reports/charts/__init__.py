"""Pictures of a document's charts, for papers and READMEs. `figure` draws them with matplotlib (extra `charts`)."""
