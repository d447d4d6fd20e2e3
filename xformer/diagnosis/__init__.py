"""What is wrong with a transformer, and how sure that is: identities of a trace, and behaviours of a model."""
