// The functions of Boost.URL that are no templates, compiled once.
#include <boost/url/src.hpp>
