// How the search orders what it finds: Sphinx's own scores, but names of the module gpuconv itself come before the
// functions of the same names elsewhere, as gpuconv.max_pool before gpuconv.dask.max_pool.
var Scorer = {
    score: function (result) {
        const [, title, , description, score] = result;
        const isFunction = /Python (function|class)/.test(description);
        return isFunction && /^gpuconv\.\w+$/.test(title) ? score + 20 : score;
    },
    objNameMatch: 11,
    objPartialMatch: 6,
    objPrio: {0: 15, 1: 5, 2: -5},
    objPrioDefault: 0,
    title: 15,
    partialTitle: 7,
    term: 5,
    partialTerm: 2,
};
