#!/bin/sh
# Every route with curl. Start a server first: decoupled serve
set -eu
URL=${1:-http://127.0.0.1:8000}
KEY=${2:-unused}

call() { curl --silent --show-error --fail-with-body --header "authorization: Bearer $KEY" "$@"; echo; }
json() { path=$1; shift; call --header "content-type: application/json" "$@" "$URL$path"; }

# Add passages, ask, search, delete.
json /v1/passages --request PUT --data '{"passages": [{"id": "dracula", "text": "Bram Stoker wrote Dracula in 1897."}]}'
json /v1/ask --data '{"question": "Who wrote Dracula?", "k": 1}'
json /v1/search --data '{"query": "author of Dracula", "k": 3}'

# Rerank texts, or stored passages by id: Cohere v2, Jina and Cohere v1, Text Embeddings Inference, vLLM.
json /v2/rerank --data '{"model": "any", "query": "who wrote Dracula?", "documents": ["Paris is in France.", "Dracula is by Bram Stoker."], "top_n": 1}'
json /v1/rerank --data '{"model": "any", "query": "who wrote Dracula?", "documents": ["Paris is in France.", {"id": "dracula"}]}'
json /rerank --data '{"query": "who wrote Dracula?", "texts": ["Paris is in France.", "Dracula is by Bram Stoker."]}'
json /score --data '{"text_1": "who wrote Dracula?", "text_2": ["Paris is in France.", "Dracula is by Bram Stoker."]}'

call --request DELETE "$URL/v1/passages/dracula"
call "$URL/v1/info"
