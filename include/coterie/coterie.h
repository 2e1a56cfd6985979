/* All of Coterie's public headers. */
#ifndef COTERIE_COTERIE_H
#define COTERIE_COTERIE_H

#include "coterie/bench_moe.h"
#include "coterie/chat.h"
#include "coterie/client.h"
#include "coterie/engine.h"
#include "coterie/eval.h"
#include "coterie/file.h"
#include "coterie/group.h"
#include "coterie/group_layers.h"
#include "coterie/group_nodes.h"
#include "coterie/group_solve.h"
#include "coterie/layout.h"
#include "coterie/load.h"
#include "coterie/load_test.h"
#include "coterie/model.h"
#include "coterie/place.h"
#include "coterie/placement.h"
#include "coterie/predict.h"
#include "coterie/predict_evaluate.h"
#include "coterie/predict_study.h"
#include "coterie/roof.h"
#include "coterie/server.h"
#include "coterie/status.h"
#include "coterie/text.h"
#include "coterie/tokenizer.h"
#include "coterie/topology.h"
#include "coterie/trace.h"
#include "coterie/version.h"

#endif
