package dlocktest
