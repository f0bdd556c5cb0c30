"""Adapters that put an `Engine` where other frameworks expect a reranker or a reader.

langchain     DecoupledRerank                    a document compressor
llama_index   DecoupledRerank                    a node postprocessor
haystack      DecoupledRanker, DecoupledReader   components of a pipeline
cross_encoder CrossEncoder                       in place of that of sentence-transformers
mteb          DecoupledReranker                  a model to evaluate
pyterrier     DecoupledTransformer               a stage of pipelines: bm25 >> DecoupledTransformer(…)

Import the module of the framework that you have; nothing here imports the others.
"""
