/* Many connections over one pair of byte streams. */
#ifndef ROCK_MUX_H
#define ROCK_MUX_H

#include "serve.h"

int run_mux(int in, int out, answering *answer);

#endif
