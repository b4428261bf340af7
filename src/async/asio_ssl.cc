// The functions of asio::ssl that are no templates, compiled once.
#include <boost/asio/ssl/impl/src.hpp>
