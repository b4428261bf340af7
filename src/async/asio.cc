// The functions of Asio that are no templates, compiled once.
#include <boost/asio/impl/src.hpp>
