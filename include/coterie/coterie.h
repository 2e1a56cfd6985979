/* All of Coterie's public headers. */
#ifndef COTERIE_COTERIE_H
#define COTERIE_COTERIE_H

#include "coterie/model.h"
#include "coterie/roof.h"
#include "coterie/status.h"
#include "coterie/version.h"

#endif
